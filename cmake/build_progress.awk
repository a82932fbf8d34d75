# How far a build is: `awk -v elapsed=SECONDS -f build_progress.awk PLAN LOG`, where PLAN is what `ninja -n`
# printed before it and LOG what ninja has printed so far. Prints "38 of 120 steps, 2:10 left".
#
# Steps differ by a factor of 100, so time is told by weights: about the seconds that one takes on one core.
function weight(step) {
  if (step ~ /Linking/) return 1
  if (step ~ /dtrain_runtime.dir\/cmake_pch/) return 40
  if (step ~ /cmake_pch/) return 15
  if (step ~ /kernels\/.*variant_/) return 40
  if (step ~ /\.cu\.o/) return 22
  if (step ~ /(runtime|examples)\/CMakeFiles\/[^ ]*Unity/ && step !~ /plan\//) return 26
  if (step ~ /Unity/) return 18
  if (step ~ /tests\/(runtime|examples)\/CMakeFiles/) return 16
  if (step ~ /Building/) return 6
  return 1
}
function clock(seconds) { return sprintf("%d:%02d", seconds / 60, seconds % 60) }
!/^\[[0-9]+\/[0-9]+\] / { next }
{ step = $0; sub(/^\[[^]]*\] /, "", step) }
FILENAME == ARGV[1] { planned += weight(step); steps++; next }
{ done += weight(step); finished++ }
END {
  if (steps == 0 || finished > steps) exit  # The plan was of another build.
  line = sprintf("%d of %d steps", finished, steps)
  if (done > 20 && planned >= done) line = line ", " clock(elapsed * (planned - done) / done) " left"
  print line
}
