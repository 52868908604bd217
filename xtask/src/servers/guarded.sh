# Runs a command that must not outlive its starter: sh -c THIS guarded SIGNALS FOLDER COMMAND [ARGUMENT…]
#
# Standard input is a pipe whose other end only the starter holds. The pipe ends when the starter closes it or dies.
# Then the command gets SIGNALS, one after the other, and KILL if it still runs after 30 seconds. When the command has
# ended, FOLDER (unless empty) is removed, and this shell exits with the status of the command.
#
# This shell leads a process group of its own, so a terminal's Ctrl-C does not reach it.

signals=$1 folder=$2
shift 2
exec 3<&0

"$@" </dev/null 3<&- &
command=$!

{
    read -r _ <&3
    for signal in $signals; do kill -s "$signal" "$command"; done
    sleep 30
    kill -s KILL "$command"
} >/dev/null 2>&1 &

# A shell reports a signal that ended the process it waited for; this report is suppressed.
wait "$command" 2>/dev/null
status=$?
# Ends the waiting subshell above and other processes of the group. This shell ignores TERM, because it must remove the
# folder.
trap '' TERM
kill -s TERM 0
[ -z "$folder" ] || rm -rf -- "$folder"
exit "$status"
