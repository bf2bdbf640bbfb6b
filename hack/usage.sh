# Read by the scripts in this folder before they do anything. --help, among any arguments, prints the comment at the top of
# the script.
# shellcheck shell=bash

usage() { awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"; }

refuse() { # argument
    echo "hack/${0##*/}: found $1, expected arguments as in hack/${0##*/} --help" >&2
    exit 2
}

for argument; do
    case $argument in
        -h | --help)
            usage
            exit
            ;;
    esac
done
