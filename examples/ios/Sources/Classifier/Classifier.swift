import ExecuTorch
import Foundation

/// The program `classifier` with its named data.
public final class Classifier {
    private let module: Module

    /// Loads the program from the resources.
    ///
    /// - Throws: `ProgramError` if a file is missing or `Module` cannot run the program; errors of ExecuTorch.
    public init() throws {
        let files = try ProgramFiles(name: "classifier", directory: Bundle.module.folder("Programs"))
        module = Module(filePath: files.program, dataFilePaths: files.namedData)
        try module.load("classify")
    }

    /// Classifies a text.
    ///
    /// - Parameter tokens: int64, 1 to 64 numbers from 0 to 255.
    /// - Returns: float32, one score for each of 8 classes.
    public func scores(_ tokens: [Int64]) throws -> [Float] {
        guard (1...64).contains(tokens.count) else {
            throw ProgramError(description: "classify takes 1 to 64 tokens, not \(tokens.count)")
        }
        let input = Tensor<Int64>(tokens, shape: [1, tokens.count])
        let output: Tensor<Float> = try module.execute("classify", input)
        return output.scalars()
    }
}
