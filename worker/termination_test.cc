#include "worker/termination.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

// Runs `child` in a process of its own and returns how it ended.
template <typename Function>
int StatusOf(const Function& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

TEST(TerminationTest, TheFirstReasonStays) {
  Termination termination;
  termination.Request(3, "first");
  termination.Request(4, "second");
  const Termination::Reason reason = termination.Await();
  EXPECT_EQ(reason.exit_code, 3);
  EXPECT_EQ(reason.text, "first");
}

TEST(TerminationTest, OneSignalIsARequest) {
  const int status = StatusOf([] {
    static Termination termination;
    TerminateOnSignals(&termination);
    kill(getpid(), SIGTERM);
    _exit(termination.Await().exit_code);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(TerminationTest, ASecondSignalEndsTheProcess) {
  const int status = StatusOf([] {
    static Termination termination;
    TerminateOnSignals(&termination);
    kill(getpid(), SIGTERM);
    termination.Await();
    kill(getpid(), SIGINT);
    sleep(60);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST(ExitWithParentTest, AnotherParentIsRefused) {
  const int status = StatusOf([] {
    _exit(ExitWithParent(getppid()).ok() &&
                  ExitWithParent(getpid()).code() ==
                      absl::StatusCode::kFailedPrecondition
              ? 0
              : 1);
  });
  EXPECT_EQ(status, 0);
}

TEST(ExitWithParentTest, TheChildOfADeadParentDies) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int status = StatusOf([&] {
    const pid_t parent = getpid();
    int ready[2];
    if (pipe(ready) != 0) _exit(1);
    if (fork() == 0) {
      // The grandchild holds the pipe's end for as long as it lives.
      close(ends[0]);
      const char ok = ExitWithParent(parent).ok() ? 1 : 0;
      if (write(ready[1], &ok, 1) != 1) _exit(1);
      sleep(600);
      _exit(0);
    }
    char ok = 0;
    _exit(read(ready[0], &ok, 1) == 1 && ok == 1 ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
  close(ends[1]);
  char nothing = 0;
  EXPECT_EQ(read(ends[0], &nothing, 1), 0);  // ends when the grandchild does
  close(ends[0]);
}

}  // namespace
}  // namespace ithaca
