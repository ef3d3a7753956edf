#!/bin/sh
# Installs iop-node from this Edge and starts it. The token comes as an argument, a file or $IOP_NODE_TOKEN.
#
#   curl -fsS URL/join.sh | sh -s -- JOIN_STRING            (the line of `iop-edge node add` has it)
#   curl -fsS URL/join.sh | sh -s -- --id ID --token-file FILE
#
# Options: --dir DIR      where it is installed (default: $XDG_DATA_HOME/iop-node)
#          --with-index   take third-party packages from the package index, where this Edge does not serve them
#          --no-start     install only, and print the command that starts it
#          --             what follows goes to `iop-node run` as it is
set -eu

edge=@EDGE@
url=@URL@

fail() {
    echo "join.sh: $*" >&2
    exit 1
}

main() {
    id=${IOP_NODE_ID:-}
    token_file=
    token=${IOP_NODE_TOKEN:-}
    folder=${XDG_DATA_HOME:-$HOME/.local/share}/iop-node
    index=no
    start=yes
    while [ $# -gt 0 ]; do
        case $1 in
            --id) [ $# -ge 2 ] || fail "--id: a Node id must follow"; id=$2; shift 2 ;;
            --token-file) [ $# -ge 2 ] || fail "--token-file: a file must follow"; token_file=$2; shift 2 ;;
            --dir) [ $# -ge 2 ] || fail "--dir: a folder must follow"; folder=$2; shift 2 ;;
            --with-index) index=yes; shift ;;
            --no-start) start=no; shift ;;
            --) shift; break ;;
            iop1:*)
                # iop1:HOST:PORT:ID:SECRET, read from its end, since HOST may be an IPv6 address.
                rest=${1#iop1:}
                token=${rest##*:}; rest=${rest%:*}
                id=${rest##*:}; edge=${rest%:*}
                shift ;;
            *) fail "$1: not an option of this script; see its first lines" ;;
        esac
    done
    [ -n "$id" ] || fail "no Node id: give the join string, or --id ID"
    [ -n "$token_file$token" ] || fail "no token: give the join string, --token-file FILE, or set IOP_NODE_TOKEN"

    python=$(find_python) || fail "no Python of version 3.11 or newer was found; install one, then run this again"
    mkdir -p "$folder"
    [ -x "$folder/venv/bin/python" ] || "$python" -m venv "$folder/venv" \
        || fail "a virtual environment could not be made; on Debian the package python3-venv has what is missing"
    install "$folder/venv/bin/python"

    if [ -z "$token_file" ]; then
        token_file=$folder/token
        # Into a file of its owner alone: a command line can be read by every user of the machine.
        (umask 077 && printf '%s\n' "$token" >"$token_file")
        chmod 600 "$token_file"
    fi
    unset IOP_NODE_TOKEN
    set -- "$folder/venv/bin/iop-node" run --edge "$edge" --id "$id" --token-file "$token_file" "$@"
    if [ "$start" = no ]; then
        echo "installed; this starts it: $*"
        return
    fi
    echo "joining $edge as $id; next time start it with: $*"
    exec "$@"
}

find_python() {
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$name"
            return
        fi
    done
    return 1
}

install() {
    host=${url#*://}
    host=${host%%/*}
    # Plain HTTP is as trustworthy as the network between; the Edge's operator can put HTTPS before it.
    case $url in http://*) trust="--trusted-host $host" ;; *) trust= ;; esac
    quiet="--disable-pip-version-check -q"
    if [ "$index" = yes ]; then
        # Ours first and from here alone, so that no package of the same name elsewhere can take its place.
        "$1" -m pip install $quiet $trust --no-index --find-links "$url/files/" --no-deps --upgrade iop-node iop-wire \
            || fail "iop-node could not be installed from $url/files/"
        "$1" -m pip install $quiet iop-node || fail "what iop-node needs could not be installed from the package index"
    else
        "$1" -m pip install $quiet $trust --no-index --find-links "$url/files/" --upgrade iop-node \
            || fail "iop-node could not be installed from $url/files/ alone; --with-index takes the rest from outside"
    fi
}

main "$@"
