// Where libraries and the language end a process that has no memory.
#pragma once

namespace shardc {

// Loads libgcc_s. libc does so only when an exception leaves a call of its own (pthread_once), and
// ends the process where there is no memory for it then. Throws std::bad_alloc.
void LoadUnwinder();

// From now on std::terminate for want of memory, as of a thread of a library, is the tool's error
// E6201 (exit 6).
void NameTerminationWithoutMemory();

// From now on so is a library's exit(1): libgomp's when it gets no memory or no thread.
void NameExitOfLibraries();

}  // namespace shardc
