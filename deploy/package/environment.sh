# shellcheck shell=sh
# Sourced by the programs in bin/: says where the libraries are.
# ITHACA_PACKAGE is the package's folder.

# The folder of LibTorch 2.11: $LIBTORCH, one beside the package's lib/, or
# python3's own torch.
find_libtorch() {
  if [ -n "${LIBTORCH:-}" ]; then
    printf '%s' "$LIBTORCH"
  elif [ -d "$ITHACA_PACKAGE/libtorch/lib" ]; then
    printf '%s' "$ITHACA_PACKAGE/libtorch"
  else
    python3 -c 'import importlib.util as u
s = u.find_spec("torch")
print(s.submodule_search_locations[0] if s else "", end="")' 2>/dev/null || true
  fi
}

has_libtorch() {
  [ -e "$libtorch/lib/libtorch_cpu.so" ]
}

libtorch="$(find_libtorch)"
LD_LIBRARY_PATH="$ITHACA_PACKAGE/lib${libtorch:+:$libtorch/lib}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# The CUDA libraries that the torch wheel was installed with.
for folder in "$libtorch"/../nvidia/*/lib; do
  [ -d "$folder" ] && LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$folder"
done
export LD_LIBRARY_PATH
