#!/usr/bin/env bash
# make_package.sh VERSION DEVICE PYTHON: packs what ./dev package built to
# dist/ithaca-VERSION-linux-x86_64-DEVICE.tar.gz.
#
#   bin/      what people run: finds LibTorch, then execs libexec/
#   libexec/  the programs
#   lib/      the Debian libraries they need (gRPC and friends)
#   python/   the `ithaca` package, a wheel
#   tests/    with DEVICE=cuda: GPU tests and benchmarks
#
# LibTorch itself (hundreds of MB) stays outside: bin/ takes $LIBTORCH, then a
# libtorch folder beside the package's own, then python3's torch.
set -euo pipefail

version="$1" device="$2" python="$3"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
here="$root/deploy/package"
name="ithaca-$version-linux-x86_64-$device"
stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT
package="$stage/$name"
mkdir -p "$package"/{bin,libexec,lib,python}

programs=(
  server/ithaca-coordinator
  worker/ithaca-worker
  client/ithaca
)
if [[ $device == cuda ]]; then
  mapfile -t gpu_programs < <(grep -v '^#' "$root/tests/gpu/programs.txt")
  mkdir -p "$package/tests"
  cp "$root"/tests/gpu/*.sh "$root"/tests/gpu/*.py "$package/tests/" 2>/dev/null || true
else
  gpu_programs=()
fi

# Debian's libraries below /usr that another Linux may lack, but not the C and
# C++ run-time: those are the host's own (glibc 2.36 and GCC 12's or newer).
debian_libraries() {
  ldd "$@" | awk '$3 ~ /^\/(usr\/)?lib/ { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so' |
    grep -vE '/(libcuda|libcudart|libnccl|libcudnn|libcublas)[^/]*\.so'
}

elf=()
for program in "${programs[@]}" "${gpu_programs[@]}"; do
  target="$package/libexec/$(basename "$program")"
  strip --strip-unneeded -o "$target" "$root/bazel-bin/$program"
  chmod 755 "$target"
  # The build machine's LibTorch is no business of the one it runs on.
  patchelf --remove-rpath "$target"
  elf+=("$root/bazel-bin/$program")
done
for library in $(debian_libraries "${elf[@]}"); do
  cp -L "$library" "$package/lib/"
done

for program in "${programs[@]}"; do
  sed "s/@PROGRAM@/$(basename "$program")/" "$here/launcher.sh" \
    >"$package/bin/$(basename "$program")"
  chmod 755 "$package/bin/$(basename "$program")"
done
cp "$here/environment.sh" "$package/libexec/"

"$python" -m pip wheel -q --no-deps \
  -w "$package/python" "$root/client/python"
cp "$root/LICENSE" "$here/README.md" "$package/"
printf '%s\n' "$version" >"$package/VERSION"

mkdir -p "$root/dist"
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$root/dist/$name.tar.gz" \
  "$name"
printf 'dist/%s.tar.gz (%s)\n' "$name" \
  "$(du -h "$root/dist/$name.tar.gz" | cut -f1)"
