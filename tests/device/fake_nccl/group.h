// Launches: what a call, or a group of calls, queues on streams, and in which order a device's communicators did.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "communicator.h"
#include "operation.h"

namespace fake_nccl {

// Checks an operation and launches it, or adds it to this thread's group; a code.
int submit(const std::shared_ptr<Communicator>& communicator, const Request& request);
// In a group, a blocking call that begins to join ends with the group.
int begun(const std::shared_ptr<Communicator>& communicator);

int group_start();
int group_end();

// Queues operations of one communicator. With its mutex held.
int queue(Communicator* communicator, const std::vector<std::shared_ptr<Operation>>& operations);

// The communicator of that id if this process has it on that device; else empty.
std::string name_on_device(int device, uint64_t communicator);

}  // namespace fake_nccl
