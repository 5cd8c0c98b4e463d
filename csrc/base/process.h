// Which process this is, without a system call.
#pragma once

namespace ddl {

// getpid(), asked once per process: a fork is noticed.
int process_id();

}  // namespace ddl
