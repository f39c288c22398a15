#ifndef ITHACA_SERVER_MOCK_GROUP_MANAGER_H_
#define ITHACA_SERVER_MOCK_GROUP_MANAGER_H_

#include <gmock/gmock.h>

#include "server/group_manager.h"

namespace ithaca::server {

// For tests.
class MockGroupManager : public GroupManager {
 public:
  MOCK_METHOD(void, SetObserver, (GroupObserver*), (override));
  MOCK_METHOD(void, MarkReady, (std::string_view, uint64_t), (override));
  MOCK_METHOD(void, ReportFailure,
              (std::string_view, uint64_t, GroupFailureReason,
               std::string_view),
              (override));
  MOCK_METHOD(void, Release, (std::string_view, uint64_t), (override));
  MOCK_METHOD(std::vector<Group>, Groups, (), (const, override));
  MOCK_METHOD(std::vector<GroupMember>, JoinedWorkers, (), (const, override));
  MOCK_METHOD(WorkerCounts, Workers, (), (const, override));
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MOCK_GROUP_MANAGER_H_
