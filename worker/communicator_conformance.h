#ifndef ITHACA_WORKER_COMMUNICATOR_CONFORMANCE_H_
#define ITHACA_WORKER_COMMUNICATOR_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/communicator.h"

// What every implementation of Communicator must do, as one test suite. A
// test of an implementation links it and instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorConformanceTest,
//                            testing::Values(CommunicatorFactory{...}));

namespace ithaca {

struct CommunicatorFactory {
  std::string name;
  // The ends of a fresh group, by rank; waits give up after about 20 s.
  std::function<std::vector<std::unique_ptr<Communicator>>(int world_size)>
      make;
};

class CommunicatorConformanceTest
    : public testing::TestWithParam<CommunicatorFactory> {
 protected:
  // Runs `body` once a rank, each on a thread, and joins them.
  static void OnEveryRank(
      std::vector<std::unique_ptr<Communicator>>& group,
      const std::function<void(Communicator& communicator)>& body);
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_COMMUNICATOR_CONFORMANCE_H_
