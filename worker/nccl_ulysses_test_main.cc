// The main() of tests whose ranks are processes on GPUs.

#include <memory>

#include "gtest/gtest.h"
#include "worker/nccl_test_ranks.h"
#include "worker/nccl_ulysses_test_group.h"
#include "worker/ulysses_test_caller.h"

namespace ithaca {

std::unique_ptr<UlyssesTestCaller> MakeUlyssesTestCaller(int world_size) {
  return std::make_unique<NcclUlyssesTestGroup>(world_size);
}

}  // namespace ithaca

int main(int argc, char** argv) {
  if (const auto role = ithaca::ParseRankRole(argc, argv)) {
    return ithaca::ServeUlyssesTestRank(*role);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
