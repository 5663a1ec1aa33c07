# Builds ExecuTorch programs from manifests, in a project that uses CMake 3.20 or later with Ninja or Make.
#
#   find_package(etbuild REQUIRED) # cmake -DCMAKE_PREFIX_PATH=$(etbuild --cmake-prefix-path)
#   executorch_add_program(net MANIFEST models/net.yaml NAMED_DATA weights)
#   add_dependencies(app net)
#
# The target `net` builds net.pte, net.weights.ptd and net.index.json. The property ETBUILD_FILES of the target lists
# them, and ETBUILD_DIRECTORY is their directory.
#
# A command computes the key of the program after an edit to the manifest, a source, a data file or an installed package.
# Another command builds the program if the key is another one: not after an edit to a comment in the manifest.

include_guard(GLOBAL)
cmake_minimum_required(VERSION 3.20)

# executorch_add_program(NAME MANIFEST file
#                        [VARIANT name] [SET name=value...] [ROOT directory...] [SOURCE name=file...] [DATA name=file...]
#                        [NAMED_DATA tag...] [OUTPUT_DIRECTORY directory] [ALL])
#
#   NAME              the name of the target, and of the program: the `name` in the manifest, with `.VARIANT` if there is one
#   MANIFEST          the manifest
#   VARIANT           a variant of the manifest
#   SET               values of the manifest's parameters
#   ROOT              more directories with sources and data
#   SOURCE, DATA      files by the name that the model or the manifest uses
#   NAMED_DATA        all tags under the manifest's `named_data`, without those with a `shard_size`
#   OUTPUT_DIRECTORY  where the program is written; by default the current binary directory
#   ALL               build the program with the default target
#
# The variable ETBUILD_EXECUTABLE names the driver. By default `etbuild` is looked for on the PATH.
function(executorch_add_program NAME)
  cmake_parse_arguments(
    PARSE_ARGV 1 arg "ALL" "MANIFEST;VARIANT;OUTPUT_DIRECTORY" "SET;ROOT;SOURCE;DATA;NAMED_DATA")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "executorch_add_program(${NAME}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_MANIFEST)
    message(FATAL_ERROR "executorch_add_program(${NAME}): MANIFEST is missing")
  endif()
  etbuild_find_driver()

  cmake_path(ABSOLUTE_PATH arg_MANIFEST BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE manifest)
  set(directory "${CMAKE_CURRENT_BINARY_DIR}")
  if(arg_OUTPUT_DIRECTORY)
    cmake_path(ABSOLUTE_PATH arg_OUTPUT_DIRECTORY BASE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}" OUTPUT_VARIABLE directory)
  endif()
  set(options)
  foreach(setting IN LISTS arg_SET)
    list(APPEND options --set "${setting}")
  endforeach()
  foreach(root IN LISTS arg_ROOT)
    cmake_path(ABSOLUTE_PATH root BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND options --root "${root}")
  endforeach()
  foreach(kind IN ITEMS SOURCE DATA)
    string(TOLOWER ${kind} option)
    foreach(entry IN LISTS arg_${kind})
      if(NOT entry MATCHES "^([^=]+)=(.+)$")
        message(FATAL_ERROR "executorch_add_program(${NAME}): ${kind} ${entry}: expected NAME=FILE")
      endif()
      set(name "${CMAKE_MATCH_1}")
      set(file "${CMAKE_MATCH_2}")
      cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
      list(APPEND options --${option} "${name}=${file}")
    endforeach()
  endforeach()
  if(arg_VARIANT)
    list(APPEND options --variant "${arg_VARIANT}")
  endif()
  # The lists become arguments of `--expect-...`, which are separated by commas.
  list(JOIN arg_NAMED_DATA "," tags)

  set(key "${CMAKE_CURRENT_BINARY_DIR}/${NAME}.key")
  set(files "${directory}/${NAME}.pte" "${directory}/${NAME}.report.json" "${directory}/${NAME}.index.json")
  foreach(tag IN LISTS arg_NAMED_DATA)
    list(APPEND files "${directory}/${NAME}.${tag}.ptd")
  endforeach()
  set(plan
      "${ETBUILD_EXECUTABLE}" plan "${manifest}" ${options} "--expect-name=${NAME}" "--expect-named-data=${tags}" --key-file "${key}"
      --depfile "${key}.d")

  if(POLICY CMP0116)
    cmake_policy(SET CMP0116 NEW) # the depfile has absolute paths
  endif()
  if(CMAKE_GENERATOR MATCHES "Ninja")
    # Ninja sees that a command has left its output as it was.
    add_custom_command(
      OUTPUT "${key}"
      COMMAND ${plan}
      DEPENDS "${manifest}" "${ETBUILD_EXECUTABLE}"
      DEPFILE "${key}.d"
      COMMENT "Planning ${NAME}"
      VERBATIM)
  else()
    # Make compares times only. The stamp is as young as the last plan, the key as its last change.
    add_custom_command(
      OUTPUT "${key}.stamp"
      COMMAND ${plan} --depfile-target "${key}.stamp"
      COMMAND "${CMAKE_COMMAND}" -E touch "${key}.stamp"
      DEPENDS "${manifest}" "${ETBUILD_EXECUTABLE}"
      DEPFILE "${key}.d"
      COMMENT "Planning ${NAME}"
      VERBATIM)
    add_custom_command(
      OUTPUT "${key}"
      COMMAND "${CMAKE_COMMAND}" -E true
      DEPENDS "${key}.stamp"
      COMMENT ""
      VERBATIM)
  endif()
  add_custom_command(
    OUTPUT ${files}
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${directory}"
    COMMAND "${ETBUILD_EXECUTABLE}" build "${manifest}" ${options} -o "${directory}"
    COMMAND "${CMAKE_COMMAND}" -E touch ${files}
    DEPENDS "${key}"
    COMMENT "Building ${NAME}.pte"
    USES_TERMINAL
    VERBATIM)
  set(all)
  if(arg_ALL)
    set(all ALL)
  endif()
  add_custom_target(${NAME} ${all} DEPENDS ${files})
  set_target_properties(${NAME} PROPERTIES ETBUILD_FILES "${files}" ETBUILD_DIRECTORY "${directory}")
endfunction()
