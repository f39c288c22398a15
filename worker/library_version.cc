#include "worker/library_version.h"

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ithaca {

namespace {

absl::Status TooOld(std::string_view library, const std::string& built,
                    const std::string& found) {
  return absl::FailedPreconditionError(
      absl::StrCat(absl::string_view(library.data(), library.size()),
                   " is version ", found, "; this program was built for ",
                   built, " and needs that or a newer one"));
}

}  // namespace

std::string CudaVersionString(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string NcclVersionString(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".",
                      version % 100);
}

absl::Status CheckCudaVersion(std::string_view library, int built, int found) {
  if (found >= built) return absl::OkStatus();
  return TooOld(library, CudaVersionString(built), CudaVersionString(found));
}

absl::Status CheckNcclVersion(int built, int found) {
  if (found >= built) return absl::OkStatus();
  return TooOld("NCCL", NcclVersionString(built), NcclVersionString(found));
}

}  // namespace ithaca
