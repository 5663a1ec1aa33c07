import Foundation

public struct ProgramError: Error, CustomStringConvertible {
    public let description: String
}

/// The files of a program, as its index lists them. So the code names no `.ptd` file: a build with other tags or
/// shards needs no other code.
struct ProgramFiles {
    let program: String
    let namedData: [String]

    /// - Throws: `ProgramError` if a file is missing: without its named data, ExecuTorch's runtime would crash.
    init(name: String, directory: URL) throws {
        let index = try JSONDecoder().decode(
            Index.self, from: Data(contentsOf: directory.appendingPathComponent("\(name).index.json")))
        if index.inputs.plan.share_mutable_buffers ?? false {
            throw ProgramError(description: "the methods of \(name) share mutable buffers, and Module gives each its own")
        }
        func paths(_ kind: String) throws -> [String] {
            try index.artifacts.filter { $0.kind == kind }.map { artifact in
                let path = directory.appendingPathComponent(artifact.file).path
                let size = try FileManager.default.attributesOfItem(atPath: path)[.size] as? Int
                guard size == artifact.size else {
                    throw ProgramError(description: "\(artifact.file) is not the file of \(name).index.json")
                }
                return path
            }
        }
        guard let found = try paths("program").first else {
            throw ProgramError(description: "\(name).index.json lists no program")
        }
        program = found
        namedData = try paths("named_data")
    }
}

/// What is read of an index. The names are those of the file.
private struct Index: Decodable {
    struct Artifact: Decodable {
        let file: String
        let kind: String
        let size: Int
    }

    struct Inputs: Decodable {
        struct Plan: Decodable {
            let share_mutable_buffers: Bool?
        }

        let plan: Plan
    }

    let artifacts: [Artifact]
    let inputs: Inputs
}

extension Bundle {
    /// A folder of the resources.
    func folder(_ name: String) -> URL {
        (resourceURL ?? bundleURL).appendingPathComponent(name)
    }
}
