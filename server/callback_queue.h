#ifndef ITHACA_SERVER_CALLBACK_QUEUE_H_
#define ITHACA_SERVER_CALLBACK_QUEUE_H_

namespace ithaca::server {

// Keeps gRPC's queue for callbacks to the process's end. It otherwise ends with
// the last server and channel that use it, and gRPC 1.51 may abort the process
// then: its threads may touch the queue once more. Idempotent, thread-safe.
void KeepCallbackQueue();

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_CALLBACK_QUEUE_H_
