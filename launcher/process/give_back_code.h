// For processes that wait most of their lives beside workers that need the memory.
#pragma once

namespace ddprun {

// Takes the pages of this process's code and constants out of its resident memory: several MB, which a
// process of 500 KB would otherwise be shown with. What runs next comes back page by page, from the page
// cache in some ten microseconds altogether; where memory is short the kernel may have to read the file
// again. Breakpoints that a debugger has set in this
// process are lost. Any thread, at any time (madvise(2), MADV_DONTNEED on private mappings of files
// that nobody may write).
void give_back_code();

}  // namespace ddprun
