#!/bin/sh
# Copies apt's sources with the date of the base image: dated.sh FROM TO
#
# Debian's official images name, in a comment of each stanza, the dated snapshot that they were made from. In the copy
# that snapshot is the source. A stanza without such a comment (a base made locally) is copied as it is.
set -eu
for file in "$1"/sources.list.d/*.sources "$1"/sources.list; do
    [ -e "$file" ] || continue
    case $file in *.sources) name=$(basename "$file") ;; *) name=local.list ;; esac
    awk '
        /^# https?:\/\/.*\/[0-9]+T[0-9]+Z\/?$/ { dated = $2 }
        /^URIs:/ && dated != "" { print "URIs: " dated; print "Check-Valid-Until: no"; dated = ""; next }
        /^$/ { dated = "" }
        { print }
    ' "$file" >"$2/$name"
done
