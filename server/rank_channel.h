#ifndef ITHACA_SERVER_RANK_CHANNEL_H_
#define ITHACA_SERVER_RANK_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>

#include "server/group_manager.h"

namespace ithaca::server {

// A connection of its own to a worker's RankService, by its local socket where
// it has one. Each call on it carries the member's authorization, if any.
std::shared_ptr<grpc::Channel> MakeRankChannel(const GroupMember& member);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_RANK_CHANNEL_H_
