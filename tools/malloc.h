// The binary's malloc: jemalloc where the build found it, else the system's.
#pragma once

namespace shardc {

// From now on what this thread frees it takes again without a lock. Other threads never do:
// jemalloc crashes where there is no memory for what a thread would need for it.
void CacheFreedMemory();

}  // namespace shardc
