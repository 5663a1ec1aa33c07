// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "Classifier",
    platforms: [.iOS(.v17), .macOS(.v14)],  // what ExecuTorch's package asks for
    products: [.library(name: "Classifier", targets: ["Classifier"])],
    dependencies: [
        // The release that lowered the program, or a newer one: a branch `swiftpm-VERSION` of ExecuTorch.
        .package(url: "https://github.com/pytorch/executorch.git", branch: "swiftpm-1.5.1")
    ],
    targets: [
        .target(
            name: "Classifier",
            dependencies: [
                .product(name: "executorch", package: "executorch"),
                .product(name: "backend_xnnpack", package: "executorch"),
                .product(name: "kernels_optimized", package: "executorch"),
            ],
            resources: [.copy("Programs")],
            // Backends and kernels register themselves when the app starts. Nothing calls them, so the linker would
            // leave them out.
            linkerSettings: [.unsafeFlags(["-Wl,-all_load"])]
        ),
        // `swift run classify 72 101 108` runs the program on a Mac.
        .executableTarget(name: "classify", dependencies: ["Classifier"]),
    ]
)
