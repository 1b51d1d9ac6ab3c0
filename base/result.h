// Result<T>: either a T or an Error. C++20 has no std::expected, so this is
// boost::system::result.
//
//   Result<int> port = parse_port(text);
//   if (!port) return std::move(port).error().within("--master-port");
//   use(*port);
//
// Expected failures are returned as Results. Calling value() on a failed Result is a bug and
// ends the process. Any thread.
#pragma once

#include <boost/system/result.hpp>

#include "base/assert.h"
#include "base/error.h"

namespace ddprun {

template <class T>
using Result = boost::system::result<T, Error>;

// Ends the program with the error, because value() was called on a failed Result. Boost finds this
// function by argument-dependent look-up.
[[noreturn]] inline void throw_exception_from_error(const Error& error,
                                                    const boost::source_location& where) {
  detail::assertion_failed("Result holds a value", where.file_name(),
                           static_cast<int>(where.line()), error.message().c_str());
}

}  // namespace ddprun
