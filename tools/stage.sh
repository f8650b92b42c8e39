# Sourced: `stage NAME COMMAND...` runs a command under a heading and times it; `stage_times` prints
# the times. The first stage that fails ends the script.
stage_names=() stage_seconds=()

stage() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if ! "$@"; then
    printf '\n== FAILED after %d s: %s\n' $((SECONDS - start)) "$name" >&2
    exit 1
  fi
  stage_names+=("$name") stage_seconds+=($((SECONDS - start)))
}

stage_times() {
  printf '\n== Times\n'
  local i
  for i in "${!stage_names[@]}"; do printf '%5d s  %s\n' "${stage_seconds[i]}" "${stage_names[i]}"; done
}
