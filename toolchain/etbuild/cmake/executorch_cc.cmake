# ExecuTorch's C++ runtime from its wheel, and classes for programs, in a project that uses CMake 3.20 or later.
#
#   find_package(etbuild REQUIRED)
#   executorch_add_runtime(runtime)
#   executorch_add_program(net MANIFEST models/net.yaml)
#   executorch_add_cc_library(net_cc PROGRAM net RUNTIME runtime)
#   target_link_libraries(app PRIVATE net_cc)

include_guard(GLOBAL)

# executorch_add_runtime(NAME [DIRECTORY directory] [WITHOUT_KERNELS])
#
#   NAME             the name of the library: headers, portable, optimized and quantized kernels, and XNNPACK
#   DIRECTORY        the directory `executorch` of an unpacked wheel, such as one for another processor; by default the wheel
#                    that is installed beside the driver
#   WITHOUT_KERNELS  leave out the kernels: the application has those of executorch_add_kernels_library
#
# The property ETBUILD_FILES of the library lists the shared libraries, to install them.
#
# The targets of the wheel's own package, `executorch::runtime` and others, need CMake 3.28: they name `$ORIGIN` in options of
# the linker. These do not: CMake finds the libraries itself while it builds, and `INSTALL_RPATH` says where they are later.
function(executorch_add_runtime NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WITHOUT_KERNELS" "DIRECTORY" "")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "executorch_add_runtime(${NAME}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(arg_DIRECTORY)
    cmake_path(ABSOLUTE_PATH arg_DIRECTORY BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE directory)
  else()
    etbuild_find_driver()
    execute_process(
      COMMAND "${ETBUILD_EXECUTABLE}" runtime
      OUTPUT_VARIABLE directory
      OUTPUT_STRIP_TRAILING_WHITESPACE
      COMMAND_ERROR_IS_FATAL ANY)
  endif()
  set(include "${directory}/include")
  set(parts executorch executorch_backend_xnnpack executorch_threadpool)
  if(NOT arg_WITHOUT_KERNELS)
    list(APPEND parts executorch_kernels_optimized executorch_kernels_quantized)
  endif()
  set(files)
  foreach(part IN LISTS parts)
    set(file "${directory}/lib/lib${part}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "executorch_add_runtime(${NAME}): ${file} is missing: DIRECTORY is `executorch` of an unpacked wheel")
    endif()
    list(APPEND files "${file}")
  endforeach()

  add_library(${NAME} INTERFACE)
  target_compile_features(${NAME} INTERFACE cxx_std_17)
  # The macros of the wheel's executorch-config.cmake.
  target_compile_definitions(
    ${NAME} INTERFACE C10_USING_CUSTOM_GENERATED_MACROS ET_EVENT_TRACER_ENABLED ET_USE_THREADPOOL)
  target_include_directories(
    ${NAME} SYSTEM INTERFACE "${include}" "${include}/executorch/runtime/core/portable_type/c10")
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # The linker must keep them all: kernels and backends register themselves, and no symbol refers to them.
    target_link_options(${NAME} INTERFACE "LINKER:--no-as-needed")
  endif()
  foreach(file part IN ZIP_LISTS files parts)
    add_library(${NAME}_${part} SHARED IMPORTED GLOBAL)
    set_target_properties(${NAME}_${part} PROPERTIES IMPORTED_LOCATION "${file}")
    target_link_libraries(${NAME} INTERFACE ${NAME}_${part})
  endforeach()
  set_target_properties(${NAME} PROPERTIES ETBUILD_FILES "${files}")
endfunction()

# executorch_add_cc_library(NAME PROGRAM program RUNTIME library [NAMESPACE name] [EMBED [MAX_BYTES count]])
#
#   NAME       the name of the library, and of its header NAME.h with the class
#   PROGRAM    a program: a target of executorch_add_program, or a .pte with its index and report beside it
#   RUNTIME    a library with ExecuTorch's runtime, such as one of executorch_add_runtime
#   NAMESPACE  the namespace of the class; by default the name of the program
#   EMBED      the library has the files of the program as arrays: NAME_data.h declares `embedded_files()`
#   MAX_BYTES  the largest size of the embedded files; by default 16 MiB
function(executorch_add_cc_library NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EMBED" "PROGRAM;RUNTIME;NAMESPACE;MAX_BYTES" "")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "executorch_add_cc_library(${NAME}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  foreach(needed IN ITEMS PROGRAM RUNTIME)
    if(NOT arg_${needed})
      message(FATAL_ERROR "executorch_add_cc_library(${NAME}): ${needed} is missing")
    endif()
  endforeach()
  etbuild_find_driver()
  if(TARGET "${arg_PROGRAM}")
    get_target_property(files "${arg_PROGRAM}" ETBUILD_FILES)
    if(NOT files)
      message(
        FATAL_ERROR "executorch_add_cc_library(${NAME}): ${arg_PROGRAM} is no target of executorch_add_program")
    endif()
    list(GET files 0 program)
    list(APPEND files "${arg_PROGRAM}")
  else()
    cmake_path(ABSOLUTE_PATH arg_PROGRAM BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE program)
    set(files "${program}")
  endif()
  set(options)
  foreach(option IN ITEMS NAMESPACE MAX_BYTES)
    if(arg_${option})
      string(TOLOWER "${option}" word)
      string(REPLACE "_" "-" word "${word}")
      list(APPEND options --${word} "${arg_${option}}")
    endif()
  endforeach()
  set(directory "${CMAKE_CURRENT_BINARY_DIR}/${NAME}_files")
  set(made "${directory}/${NAME}.h")
  if(arg_EMBED)
    list(APPEND options --embed)
    list(APPEND made "${directory}/${NAME}_data.h" "${directory}/${NAME}_data.cc")
  endif()
  add_custom_command(
    OUTPUT ${made}
    COMMAND "${ETBUILD_EXECUTABLE}" cpp "${program}" --stem "${NAME}" -o "${directory}" ${options}
    COMMAND "${CMAKE_COMMAND}" -E touch ${made}
    DEPENDS ${files}
    COMMENT "Writing C++ for ${NAME}"
    VERBATIM)
  add_custom_target(${NAME}_files DEPENDS ${made})
  if(arg_EMBED)
    add_library(${NAME} STATIC "${directory}/${NAME}_data.cc")
    set(scope PUBLIC)
  else()
    add_library(${NAME} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_dependencies(${NAME} ${NAME}_files)
  target_include_directories(${NAME} ${scope} "${directory}")
  target_link_libraries(${NAME} ${scope} ${arg_RUNTIME})
endfunction()
