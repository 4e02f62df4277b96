# Fills a server on a socket in this directory, and prints what it holds at each step.
set -eu
redis-server --port 0 --unixsocket redis.sock --save "" --enable-debug-command local --daemonize no \
    --logfile redis.log --dbfilename dump.rdb --dir "$PWD" &
server=$!
cli() { redis-cli -s redis.sock "$@"; }
tries=0
until cli ping 2>/dev/null | grep -q PONG; do
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || { cat redis.log >&2; exit 1; }
    sleep 0.05
done
cli debug populate 40000 key 1000
cli debug digest
cli flushall
cli debug populate 30000 other 1500
cli debug digest
cli save
cli debug reload
cli dbsize
cli debug digest
cli shutdown nosave || true
wait "$server"
rm -f dump.rdb redis.sock
