// The Android plugin is the one that ExecuTorch's own AAR is built with. It needs Gradle 8.11.1 or newer.
plugins {
    id("com.android.application") version "8.9.0" apply false
    id("org.jetbrains.kotlin.android") version "2.1.20" apply false
}
