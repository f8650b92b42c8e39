# Headers, library, CMake package and pkg-config file. A wheel holds the same tree under linattn/.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
if(SKBUILD)
  # The Python side and its users look in lib, whatever the distribution calls it.
  set(CMAKE_INSTALL_LIBDIR lib)
  set(CMAKE_INSTALL_INCLUDEDIR include)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/linattn)
install(TARGETS linattn EXPORT linattn-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/linattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING
  PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT linattn-targets NAMESPACE linattn:: DESTINATION ${package_dir}
  FILE linattn-targets.cmake)

configure_package_config_file(cmake/linattn-config.cmake.in
  ${PROJECT_BINARY_DIR}/linattn-config.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor release may break the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/linattn-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/linattn-config.cmake
  ${PROJECT_BINARY_DIR}/linattn-config-version.cmake DESTINATION ${package_dir})

# The prefix is computed from the file's own place, so the tree can be moved (a wheel is).
file(RELATIVE_PATH LINATTN_PC_TO_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/linattn.pc.in ${PROJECT_BINARY_DIR}/linattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/linattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
