// Reduces the memory of processes that wait most of the time, on a node whose workers need the
// memory.
#pragma once

namespace ddprun {

// Drops the pages of this process's code and constants from its resident memory. They are
// several MB in a process that otherwise has about 500 KB. Code that runs next is loaded again
// page by page from the page cache, in about ten microseconds altogether. Where memory is
// short, the kernel may have to read the file again. Breakpoints that a debugger has set in
// this process are lost. Any thread, at any time. Uses madvise(2), MADV_DONTNEED, on private
// mappings of files that are not writable.
void give_back_code();

}  // namespace ddprun
