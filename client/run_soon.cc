#include "client/run_soon.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <memory>
#include <utility>

namespace ithaca::client {
namespace {

// The alarm keeps its function for as long as it lives: the function must not
// hold what holds the alarm, so this holds itself until it has run.
struct Task {
  std::function<void()> function;
  grpc::Alarm alarm;
  std::shared_ptr<Task> self;
};

}  // namespace

void RunSoon(std::function<void()> function) {
  auto task = std::make_shared<Task>();
  task->function = std::move(function);
  task->self = task;
  task->alarm.Set(gpr_now(GPR_CLOCK_MONOTONIC), [task = task.get()](bool) {
    const auto self = std::exchange(task->self, nullptr);
    std::exchange(self->function, nullptr)();
  });
}

}  // namespace ithaca::client
