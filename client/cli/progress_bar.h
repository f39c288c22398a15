#ifndef ITHACA_CLIENT_CLI_PROGRESS_BAR_H_
#define ITHACA_CLIENT_CLI_PROGRESS_BAR_H_

#include <ostream>
#include <string>

namespace ithaca::client {

// A bar that redraws itself in one line of a terminal, and leaves no trace
// when it goes. Where it is disabled (no terminal) it writes nothing at all.
class ProgressBar {
 public:
  ProgressBar(std::ostream& out, bool enabled) : out_(out), enabled_(enabled) {}
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // fraction is cut to [0, 1].
  void Update(double fraction, const std::string& text);

 private:
  std::ostream& out_;
  const bool enabled_;
  bool drawn_ = false;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_PROGRESS_BAR_H_
