// A digest of a text for where OpenSSL must not be loaded (base/late_openssl.h). Any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

// Returns the first 16 bytes of the text's SHA-256 (FIPS 180-4) as 32 characters of lower-case hex.
std::string short_digest(std::string_view text);

}  // namespace ddprun
