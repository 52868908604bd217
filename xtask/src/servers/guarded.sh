# Runs a command that must not outlive its starter: sh -c THIS guarded SIGNALS FOLDER COMMAND [ARGUMENT…]
#
# Standard input is a pipe whose other end only the starter holds. It reaches its end when the starter lets go of it, and
# also when the starter dies, in whatever way. Then the command gets SIGNALS, one after the other, and KILL if it is still
# there half a minute later. However it ended, FOLDER (unless empty) is removed and the command's status answered.
#
# This shell is the leader of a process group of its own, out of reach of a terminal's Ctrl-C.

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

# A shell tells of a signal that ended what it waited for, which is nothing to tell here.
wait "$command" 2>/dev/null
status=$?
# Ends the waiter above, and what the command may have left in the group; this shell stays for the folder.
trap '' TERM
kill -s TERM 0
[ -z "$folder" ] || rm -rf -- "$folder"
exit "$status"
