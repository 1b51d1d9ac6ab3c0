#!/usr/bin/env bash
# Runs the GPU kit on this machine: ./run.sh [--out DIR] [--cpu] [--part NAME]...
#
# Ends within 9 minutes. Writes DIR/report.json and DIR/report.md, whatever fails. The default for
# DIR is the folder results next to this file. PYTHON names the python that has PyTorch (default:
# python3). --cpu tries the trainings on the CPU if there is no GPU.
#
# Exit codes: 0: nothing failed. 1: something failed. 2: nothing could be run. 3: the programs do
# not fit this machine.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
out=$here/results
arguments=("$@")
for ((i = 0; i < $#; ++i)); do
  case ${arguments[i]} in
    --out) out=${arguments[i + 1]:-$out} ;;
    --out=*) out=${arguments[i]#--out=} ;;
  esac
done
mkdir -p "$out" || exit 2
rm -f "$out/report.json" "$out/report.md"
timeout -k 5 525 "$python" "$here/gpu_kit.py" "${arguments[@]}"
code=$?
# The runner writes both files after each part. They are missing only if it could not start.
if [ ! -s "$out/report.json" ] || [ ! -s "$out/report.md" ]; then
  why="$python could not run gpu_kit.py (exit code $code); "
  why+="name a python 3.9 or newer that has PyTorch in PYTHON"
  printf '{"verdict": "not run", "why": "%s", "parts": []}\n' "$why" >"$out/report.json"
  printf '# GPU kit: not run\n\n%s\n' "$why" >"$out/report.md"
  echo "gpu-kit: $why" >&2
  [ "$code" -eq 0 ] && code=2
fi
if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
  echo "gpu-kit: the time is over; the parts that had ended are in the report" >&2
  code=1
fi
echo "gpu-kit: $out/report.md and $out/report.json"
exit "$code"
