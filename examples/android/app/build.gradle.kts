plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

val programs: String by project

// A directory for each package: files of another one would become assets too.
val directory = layout.buildDirectory.dir("programs/${programs.substringAfterLast(':')}").get().asFile

// Gradle runs this again if `programs` or a file of the directory is another one. It fetches only what is not there yet,
// and compares every file with its digest. `etbuild` must be on the PATH; a pull needs no PyTorch.
val pullPrograms by tasks.registering(Exec::class) {
    inputs.property("programs", programs)
    outputs.dir(directory)
    doFirst {
        require(Regex(".+@sha256:[0-9a-f]{64}").matches(programs)) {
            "programs=$programs in gradle.properties: name the package by its digest, as `etbuild push` prints it"
        }
    }
    commandLine("etbuild", "pull", programs, "--program", "mlp", "--out", directory)
}

android {
    namespace = "com.example.mlp"
    compileSdk = 34
    defaultConfig {
        applicationId = "com.example.mlp"
        minSdk = 23 // what the AAR asks for
        targetSdk = 34
        versionCode = 1
        versionName = "1"
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_11
        targetCompatibility = JavaVersion.VERSION_11
    }
    kotlinOptions { jvmTarget = "11" }
    sourceSets["main"].assets.srcDir(directory)
}

// What reads the assets comes after `preBuild`.
tasks.named("preBuild") { dependsOn(pullPrograms) }

dependencies {
    // The release that lowered the program, or a newer one. It has XNNPACK and the portable, optimized and quantized
    // kernels, for arm64-v8a and x86_64.
    implementation("org.pytorch:executorch-android:1.5.1")
}
