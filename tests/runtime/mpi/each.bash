# shellcheck shell=bash
# For scripts that test ranks as processes: they have set `mpirun`, `shardc`, `folder` (where they are) and fail(), and call clean_up
# when they exit.

launcher=  # of what runs in the background

clean_up() {
  [[ -n $launcher ]] && kill "$launcher" && wait "$launcher"
  rm -rf "$folder"
} 2>/dev/null

# start_each N ARGUMENT...: `shardc ARGUMENT...` as N processes in the background; what each ends with comes into
# code.RANK. mpirun hears of an end when all have ended (finish_each), so that neither its signals nor the time that it grants,
# short on a busy machine, have a part in how they end.
start_each() {
  local n=$1
  shift
  rm -f code.* ended
  # shellcheck disable=SC2016
  timeout 300 "$mpirun" --oversubscribe --bind-to none -n "$n" bash -c '
    rank=$OMPI_COMM_WORLD_RANK
    "$@"
    echo $? >code.part.$rank && mv code.part.$rank code.$rank
    while [[ -e many.log && ! -e ended ]]; do sleep 0.1; done' bash "$shardc" "$@" >many.log 2>many_err.log &
  launcher=$!
}

# await RANK...: until these have ended.
await() {
  local rank start=$SECONDS
  for rank in "$@"; do
    until [[ -e code.$rank ]]; do
      ((SECONDS < start + 120)) || fail "rank $rank does not end"
      sleep 0.02
    done
  done
}

# finish_each N: until all have ended, and mpirun too.
finish_each() {
  # shellcheck disable=SC2046
  await $(seq 0 $(($1 - 1)))
  touch ended
  wait "$launcher"
  launcher=
}

# lose_rank_2 TEXT PLAN ARGUMENT...: rank 2 of the 4 that run the plan is killed in the middle of many steps. Once it is gone the others
# are told to end, as mpirun would do. They do so in time, and one of them says TEXT.
lose_rank_2() {
  local text=$1 plan=$2 pid rank began=$SECONDS ready=0 ticks killed took
  local -a pids
  shift 2
  # The folder tells these processes from those of other tests.
  local pattern="^$shardc run $folder/$plan "
  start_each 4 run "$folder/$plan" "$@" --random-inputs 1 --repeat 10000000
  # All run steps once each has had more processor time than it takes to start.
  while ((ready < 4)); do
    ((SECONDS < began + 200)) || fail "$ready of 4 ranks run"
    sleep 0.2
    ready=0 pids=()
    for pid in $(pgrep -f "$pattern"); do
      ticks=$(awk '{print $14 + $15}' "/proc/$pid/stat" 2>/dev/null || echo 0)
      rank=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
      ((ticks < 2 * $(getconf CLK_TCK))) && continue
      ready=$((ready + 1))
      pids[rank]=$pid
    done
  done
  killed=$(date +%s%N)
  kill -KILL "${pids[2]}" || fail "rank 2 has ended by itself"
  await 2
  kill -TERM "${pids[0]}" "${pids[1]}" "${pids[3]}" 2>/dev/null  # some may have ended
  finish_each 4
  took=$((($(date +%s%N) - killed) / 1000000))
  echo "ended $took ms after the kill"
  ((took < 15000)) || fail "the others took $took ms to end"
  [[ $(cat code.0 code.1 code.2 code.3) == $'75\n75\n137\n75' ]] || fail "exit codes $(head code.*)"
  pgrep -f "$pattern" >/dev/null && fail "a process is left"
  [[ $(grep -c "$text" many_err.log) == 1 ]] || fail "not one message '$text'"
}
