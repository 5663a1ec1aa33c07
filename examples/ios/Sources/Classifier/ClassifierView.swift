import SwiftUI

/// Shows the scores of a text that the user writes. The tokens of this program are the bytes of the text.
public struct ClassifierView: View {
    @State private var text = "Hello"
    @State private var classifier = Result { try Classifier() }

    public init() {}

    public var body: some View {
        VStack {
            TextField("Text", text: $text)
            Text(scores)
        }
        .padding()
    }

    private var scores: String {
        do {
            let scores = try classifier.get().scores(text.utf8.map { Int64($0) })
            return scores.map { String($0) }.joined(separator: "\n")
        } catch {
            return String(describing: error)
        }
    }
}
