#ifndef ITHACA_SERVER_GROUP_MANAGER_OPTIONS_H_
#define ITHACA_SERVER_GROUP_MANAGER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "core/bearer_token.h"

namespace ithaca::server {

struct GroupManagerOptions {
  int group_size = 1;  // ranks of a group, >= 1
  // A worker of any other is refused.
  std::string version;
  // What workers must send, and are sent with each call.
  BearerToken token;
  // How often a worker is asked to say that it lives, and the silence after
  // which it is taken for dead.
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration heartbeat_limit = absl::Milliseconds(1500);
  // Members have this long to connect to each other; then the attempt is
  // dropped and made anew, with a fresh rendezvous id and generation.
  absl::Duration formation_timeout = absl::Seconds(15);
  // What ranks wait for each other in one exchange.
  absl::Duration collective_timeout = absl::Seconds(30);
  // What a worker has to abort a group that is over. One that does not is
  // ended: killed if it is local, else asked to exit.
  absl::Duration abort_limit = absl::Seconds(5);
  // How long a worker that just joined is kept for others of its host to
  // arrive before it may be put in a group that spans hosts.
  absl::Duration same_host_wait = absl::Seconds(2);
  // The first group's generation; later ones count up. 0: milliseconds of the
  // wall clock, so that generations rise over coordinator restarts too.
  uint64_t first_generation = 0;
  // Ends the process of a local worker that fell silent or cannot abort; may be
  // empty. Must neither block nor call back.
  std::function<void(int slot)> kill_local_slot;
  // Told of each attempt to form a group that failed (groups that did form
  // are the observer's); may be empty. As GroupObserver's calls: in order
  // with them, one at a time.
  std::function<void(std::string_view group, uint64_t generation,
                     std::string_view message)>
      on_formation_failed;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_MANAGER_OPTIONS_H_
