#ifndef ITHACA_WORKER_CUDA_MEMORY_EXPORTER_H_
#define ITHACA_WORKER_CUDA_MEMORY_EXPORTER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ithaca {

// For tests: another process with an allocation on GPU 0, since CUDA does not
// open a handle in the process that made it. The process is this program anew:
// its main() begins with RunCudaMemoryExporter.
class CudaMemoryExporter {
 public:
  explicit CudaMemoryExporter(int64_t bytes);
  ~CudaMemoryExporter();  // kills it
  CudaMemoryExporter(const CudaMemoryExporter&) = delete;
  CudaMemoryExporter& operator=(const CudaMemoryExporter&) = delete;

  const std::string& ipc_handle() const { return ipc_handle_; }
  // What the allocation holds, as that process sees it; at first bytes that
  // count from 0 to 250, again and again.
  std::string Bytes();

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  const int64_t bytes_;
  std::string ipc_handle_;
};

// In such a process: serves until it is killed, and never returns. In any
// other: does nothing.
void RunCudaMemoryExporter(int argc, char** argv);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_MEMORY_EXPORTER_H_
