# Enables the CUDA language where nvcc is found; LINATTN_WITH_CUDA says whether it was.
set(LINATTN_WITH_CUDA OFF)
if(LINATTN_CUDA STREQUAL "OFF" OR LINATTN_CUDA STREQUAL "0")
  message(STATUS "CUDA kernels switched off: building the CPU library")
else()
  # CMake 3.25 would otherwise take sm_75, whose ptxas knows no bf16. The targets are set per
  # OBJECT library in src/cuda.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(LINATTN_WITH_CUDA ON)
    # The same sources in another folder (a second clone, a wheel build) are a cache hit.
    find_program(LINATTN_CCACHE ccache)
    mark_as_advanced(LINATTN_CCACHE)
    if(LINATTN_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${LINATTN_CCACHE})
    endif()
  elseif(LINATTN_CUDA STREQUAL "ON" OR LINATTN_CUDA STREQUAL "1")
    message(FATAL_ERROR "LINATTN_CUDA=${LINATTN_CUDA}, but nvcc was not found")
  else()
    message(STATUS "nvcc not found: building the CPU library")
  endif()
endif()
