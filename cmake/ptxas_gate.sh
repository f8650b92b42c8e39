#!/bin/sh
# Runs a compiler command. Fails, beyond the command's own status, where ptxas notes C7510 to C7520:
# it has serialised wgmma, which costs most of a kernel's speed and is no warning to it.
notes=$(mktemp)
trap 'rm -f "$notes"' EXIT
"$@" 2>"$notes"
status=$?
cat "$notes" >&2
if [ $status -eq 0 ] && grep -qE '\(C75(1[0-9]|20)\)' "$notes"; then
  echo "wgmma is serialised (above): not shipped" >&2
  exit 1
fi
exit $status
