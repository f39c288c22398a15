#include <memory>

#include "worker/ulysses_test_caller.h"
#include "worker/ulysses_test_group.h"

namespace ithaca {

std::unique_ptr<UlyssesTestCaller> MakeUlyssesTestCaller(int world_size) {
  return std::make_unique<UlyssesTestGroup>(world_size);
}

}  // namespace ithaca
