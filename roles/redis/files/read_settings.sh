# Prints what Redis would start with: the settings that decide where its data is and which role it has, one in each line, the last of a name counts.
# It reads them as Redis does: included files stand where they are included, and the command line of the unit comes after the file.
#
#     sh read_settings.sh FILE UNIT        FILE is empty if Redis has no configuration file
set -eu

lines_of() {
  while read -r name value || [ -n "$name" ]; do
    case $name in
      [Ii][Nn][Cc][Ll][Uu][Dd][Ee])
        for file in $(printf '%s' "$value" | tr -d "\"'"); do
          # A pattern that fits no file is no error.
          case $file in *[*?[]*) ;; *) lines_of "$file" ;; esac
        done ;;
      *) printf '%s %s\n' "$name" "$value" ;;
    esac
  done <"$1"
}

folder=$(systemctl show --property=WorkingDirectory --value -- "$2")
folder=${folder#!}
command=$(systemctl show --property=ExecStart --value -- "$2")
cd -- "${folder:-/}"
lines=
if [ -n "$1" ]; then lines=$(lines_of "$1"); fi
words=$(printf '%s\n' "$command" | sed 's/^.* argv\[\]=//; s/ ; .*$//; s/ --/\n/g')
found=$(printf '%s\n%s\n' "$lines" "$words" | tr -d "\"'" | sed -nE '
  s/[[:space:]]+/ /g
  s/^slaveof /replicaof /I
  s/^(appendonly) (.*)$/\1 \L\2/I
  s/^(replicaof) no one ?$/replicaof no one/I
  s/^(appendonly|appendfilename|appenddirname|dbfilename|dir|replicaof) (.*[^ ]) ?$/\L\1\E \2/Ip')
printf '%s\n' "$found"
# Each folder is relative to the one before.
printf '%s\n' "$found" | sed -n 's/^dir //p' | {
  at=.
  while read -r dir; do
    case $dir in /*) at=$dir ;; *) at=$at/$dir ;; esac
  done
  printf 'dir %s\n' "$(readlink -m -- "$at")"
}
