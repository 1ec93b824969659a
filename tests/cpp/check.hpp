#pragma once
// A few lines of test support: no framework, so that the core's tests need a compiler only.

#include <cstdio>
#include <cstdlib>
#include <string>

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                   \
    }                                                                                 \
  } while (false)

/// Checks that `expression` throws `Exception` and that its message contains `part`.
#define CHECK_THROWS(expression, Exception, part)                                          \
  do {                                                                                     \
    bool thrown = false;                                                                   \
    try {                                                                                  \
      (void)(expression);                                                                  \
    } catch (const Exception& error) {                                                     \
      thrown = std::string(error.what()).find(part) != std::string::npos;                  \
      if (!thrown) std::fprintf(stderr, "message was: %s\n", error.what());                \
    }                                                                                      \
    if (!thrown) {                                                                         \
      std::fprintf(stderr, "%s:%d: CHECK_THROWS failed: %s\n", __FILE__, __LINE__, #expression); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)
