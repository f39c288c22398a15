#ifndef ITHACA_WORKER_FILE_RENDEZVOUS_STORE_H_
#define ITHACA_WORKER_FILE_RENDEZVOUS_STORE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rendezvous_store.h"

namespace ithaca {

// A rendezvous store in a folder, for tests whose ranks are threads or
// processes of one host. Values of one folder are never removed.
class FileRendezvousStore : public RendezvousStore {
 public:
  // `folder` exists.
  explicit FileRendezvousStore(std::string folder);

  // A store in a fresh folder of the test's own.
  static FileRendezvousStore Fresh();

  const std::string& folder() const { return folder_; }

  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key,
                                  absl::Duration timeout) override;

 private:
  std::string PathOf(std::string_view key) const;

  const std::string folder_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_FILE_RENDEZVOUS_STORE_H_
