#include "worker/rank_device.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/cpu_rank_device.h"
#include "worker/cpu_regions.h"

namespace ithaca {

absl::StatusOr<std::unique_ptr<RankDevice>> OpenRankDevice(
    const RankDeviceOptions& options) {
  if (options.name == "cpu") return OpenCpuRankDevice(options);
  if (absl::StartsWith(options.name, "cuda:")) {
    return absl::UnimplementedError(
        absl::StrCat(options.name, ": this program was built for the CPU ",
                     "only; ./dev build --config=cuda builds it for GPUs"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no device \"", options.name, "\": it is cpu or cuda:N"));
}

std::shared_ptr<PinnedMemory> MakePinnedMemory(
    const RankDeviceOptions& /*options*/) {
  return nullptr;
}

std::unique_ptr<RegionOpener> MakeRegionOpener(
    const RankDeviceOptions& /*options*/) {
  return MakeCpuRegionOpener();
}

}  // namespace ithaca
