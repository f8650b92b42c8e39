# Prints the C, C++ and CUDA sources under version control, a zero byte after each.
git -c safe.directory='*' ls-files -z --cached --others --exclude-standard -- \
  '*.h' '*.hpp' '*.c' '*.cpp' '*.cu' '*.cuh'
