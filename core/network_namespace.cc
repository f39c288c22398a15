#include "core/network_namespace.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ithaca {

std::string NetworkNamespace() {
  // The inode in "net:[4026531840]" is unique on a host only.
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::filesystem::path space =
      std::filesystem::read_symlink("/proc/self/ns/net", error);
  if (boot.empty() || error) return "";
  return absl::StrCat(boot, "/", space.string());
}

}  // namespace ithaca
