#ifndef ITHACA_WORKER_ULYSSES_TEST_BACKEND_H_
#define ITHACA_WORKER_ULYSSES_TEST_BACKEND_H_

#include <memory>
#include <vector>

#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/in_process_communicator.h"

// What the ranks of a test's group run on. Which it is, is a matter of what the
// test links: the same tests run on the CPU and on a GPU.

namespace ithaca {

class UlyssesTestBackend {
 public:
  virtual ~UlyssesTestBackend() = default;

  virtual std::unique_ptr<Device> MakeDevice() = 0;
  // For one of the devices above, which outlives them.
  virtual std::unique_ptr<AttentionKernels> MakeKernels(Device* device) = 0;
  // Between memory of any two of the devices.
  virtual InProcessGroup::CopyMemory CopyMemory() = 0;
  // `communicator`, made to wait for the device's work before memory that the
  // work uses is exchanged.
  virtual std::unique_ptr<Communicator> Order(
      std::unique_ptr<Communicator> communicator, Device* device) = 0;
  // Kernels that run some calls.
  virtual std::vector<AttentionKernelKind> Kernels() = 0;
};

std::unique_ptr<UlyssesTestBackend> MakeUlyssesTestBackend();

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_TEST_BACKEND_H_
