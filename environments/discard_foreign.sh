#!/bin/sh
# environments/discard_foreign.sh ENVIRONMENT: removes a virtual environment that was made under another path, or whose
# Python no longer exists, and prints a message. It keeps an environment that works, and does nothing if there is none.
env=$1
[ -e "$env/bin/activate" ] || exit 0
said=$(sed -nE "s/^[[:space:]]*(export )?VIRTUAL_ENV=[\"']?(\/[^\"']*)[\"']?\$/\2/p" "$env/bin/activate" | head -n 1)
if [ "$(readlink -f "$said")" = "$(readlink -f "$env")" ] && "$env/bin/python" -c '' 2>/dev/null; then
  exit 0
fi
rm -rf "$env"
echo "make: $env was made in ${said:-another place}, or its Python is gone: it is made anew" >&2
