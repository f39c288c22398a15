#include "worker/cuda_memory_exporter.h"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ithaca {
namespace {

constexpr char kFlag[] = "--cuda-memory-exporter";

// In whole; false at the end.
bool ReadAll(int from, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count =
        read(from, static_cast<char*>(data) + done, bytes - done);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

bool WriteAll(int to, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count =
        write(to, static_cast<const char*>(data) + done, bytes - done);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "exporter: %s\n", what);
  _exit(1);
}

}  // namespace

CudaMemoryExporter::CudaMemoryExporter(int64_t bytes) : bytes_(bytes) {
  int to[2], from[2];
  if (pipe(to) != 0 || pipe(from) != 0) std::abort();
  const std::string size = std::to_string(bytes);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    for (int end : {to[0], to[1], from[0], from[1]}) close(end);
    execl("/proc/self/exe", "exporter", kFlag, size.c_str(), nullptr);
    Fail("exec");
  }
  close(to[0]);
  close(from[1]);
  to_ = to[1];
  from_ = from[0];
  ipc_handle_.resize(sizeof(cudaIpcMemHandle_t));
  if (!ReadAll(from_, ipc_handle_.data(), ipc_handle_.size())) std::abort();
}

CudaMemoryExporter::~CudaMemoryExporter() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(to_);
  close(from_);
}

std::string CudaMemoryExporter::Bytes() {
  std::string bytes(static_cast<size_t>(bytes_), '\0');
  if (!WriteAll(to_, "r", 1) || !ReadAll(from_, bytes.data(), bytes.size())) {
    std::abort();
  }
  return bytes;
}

void RunCudaMemoryExporter(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], kFlag) != 0) return;
  std::string bytes(static_cast<size_t>(std::atoll(argv[2])), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i % 251);
  }
  void* memory = nullptr;
  cudaIpcMemHandle_t handle;
  if (cudaMalloc(&memory, bytes.size()) != cudaSuccess ||
      cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) !=
          cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess ||
      cudaIpcGetMemHandle(&handle, memory) != cudaSuccess) {
    Fail("no memory to export");
  }
  if (!WriteAll(STDOUT_FILENO, &handle, sizeof(handle))) Fail("write");
  for (char command = 0; ReadAll(STDIN_FILENO, &command, 1);) {
    if (cudaMemcpy(bytes.data(), memory, bytes.size(),
                   cudaMemcpyDeviceToHost) != cudaSuccess ||
        !WriteAll(STDOUT_FILENO, bytes.data(), bytes.size())) {
      Fail("reading back");
    }
  }
  _exit(0);
}

}  // namespace ithaca
