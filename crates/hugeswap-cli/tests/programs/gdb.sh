# Has a debugger attach to "PROGRAM wait 96" once it has managed memory, and prints what it sees of the threads.
set -eu
"$1" wait 96 >ready &
program=$!
tries=0
until [ -s ready ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || exit 1
    sleep 0.05
done
env -u LD_PRELOAD gdb -nx -batch -p "$program" -ex 'info threads' -ex 'thread apply all backtrace' 2>&1
kill "$program"
wait "$program" || true
