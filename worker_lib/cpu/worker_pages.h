// The worker pages (base/worker_page.h) of the ranks of a node, as they read each other's when they want to
// know why one does not come: a rank that is stopped, hangs or is dead cannot be asked. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun {

// How ranks tell each other where their pages are; empty: there is none.
std::string page_place(const std::string& file, std::size_t offset);

// What the page at a place says that its rank does (whereabouts() in base/flight_words.h); empty where
// there is none, or it cannot be read.
std::string whereabouts_at(const std::string& place);

}  // namespace ddprun
