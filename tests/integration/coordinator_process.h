#ifndef ITHACA_TESTS_INTEGRATION_COORDINATOR_PROCESS_H_
#define ITHACA_TESTS_INTEGRATION_COORDINATOR_PROCESS_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ithaca/v1/attention.grpc.pb.h"

namespace ithaca {

// An ithaca-coordinator of this build as a process, on ports of its own choice,
// logging JSON to a file. It is killed with this object if it still runs.
class CoordinatorProcess {
 public:
  // `flags` come after those for ports, log and worker binary, and win.
  explicit CoordinatorProcess(const std::vector<std::string>& flags);
  ~CoordinatorProcess();
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  // Waits until it listens; false if it has ended instead.
  bool AwaitListening();
  // Waits for 200 on /readyz; false if that takes a minute or two.
  bool AwaitReady();
  // Waits for its end. Its exit code, or -1 if a signal or this killed it.
  int AwaitExit();
  void Signal(int signal) const;

  // After AwaitListening.
  std::string address() const;  // of calls
  int port() const { return port_; }
  int metrics_port() const { return metrics_port_; }
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  ithaca::v1::AttentionService::Stub* stub() const { return stub_.get(); }

  // One attention call, with a deadline that a test never reaches.
  grpc::Status Call(const ithaca::v1::AttentionRequest& request,
                    ithaca::v1::AttentionResponse* response) const;

  // grpc.health.v1's Check: 0 unknown, 1 serving, 2 not; -1: an error.
  int Health(const std::string& service) const;

  // Status code and body of one GET at the metrics address; 0 if refused.
  struct HttpAnswer {
    int code = 0;
    std::string body;
  };
  HttpAnswer Get(const std::string& path) const;
  // The value of a series on /metrics, by its name with labels.
  double Metric(const std::string& series) const;

  // The most memory that it ever had; -1 if that cannot be read.
  int64_t PeakMemoryBytes() const;

  // Processes of the local workers that are in a group now.
  std::vector<pid_t> WorkerPids() const;
  uint64_t Generation() const;  // of the first group; 0 if there is none

  std::string Log() const;

 private:
  pid_t pid_ = 0;
  std::string log_path_;
  int port_ = 0;
  int metrics_port_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<ithaca::v1::AttentionService::Stub> stub_;
};

// Waits, for a minute or two at most, until it holds; whether it did.
bool AwaitTrue(const std::function<bool()>& condition);

}  // namespace ithaca

#endif  // ITHACA_TESTS_INTEGRATION_COORDINATOR_PROCESS_H_
